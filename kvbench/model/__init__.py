"""A small decoder-only transformer that really runs on this CPU, over paged KV."""
