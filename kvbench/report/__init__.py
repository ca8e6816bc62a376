"""Tables, CSV files and run.json. Reads finished results, never an engine; averages nothing."""
