"""Many runs of one configuration: a grid over any keys."""
