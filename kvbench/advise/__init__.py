"""From a symptom to a lever: what a run suffers from, and what each change of keys is worth on the same requests."""
