"""What a step takes and what fits: devices, models, memory budget and the cost tables of the modelled clock.

devices, models, config_json, deployment, memory and keys are plain Python; axes needs NumPy, tables and
roofline need Numba too.
"""
