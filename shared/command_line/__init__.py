"""Commands of both programs: their groups and help, printing to a terminal, tables, and similar names."""
