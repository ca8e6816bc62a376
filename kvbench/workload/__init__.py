"""Requests from traces and from specifications.

    build       one resolved configuration -> Requests
    trace       a trace file -> Requests; formats: mooncake, azure
    generate    arrivals, lengths, sharing and sessions -> Requests

Every random number of a run is drawn here, from a seed and a purpose (`draws`).
"""
