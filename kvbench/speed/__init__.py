"""How fast the kernels are on this machine, beside what it can do at most; whether they are right; experiments."""
