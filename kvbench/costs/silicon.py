"""Step times from kernels that were measured on real devices: aiconfigurator-core (extra kvbench[silicon])."""
