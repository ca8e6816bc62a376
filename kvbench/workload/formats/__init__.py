"""The formats of traces, one file each. The file's name is the format's, with - for _; it declares FORMAT and reads.

A new one is a new file here, an example in `tests/workload/examples.py` and a row in `docs/traces.md`: whatever lies in
this folder is a choice of trace.format and takes part in the recognition.
"""
