"""The other side of the engines: who asks, when, how many at once, who comes after whom, who gives up."""
