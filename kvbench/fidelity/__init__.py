"""How far predictions are from measured servers, and fits of step times to them."""
