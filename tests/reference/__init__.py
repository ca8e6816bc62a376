"""Plain-Python oracles: no product code is imported here, none of it is imported by the product."""
