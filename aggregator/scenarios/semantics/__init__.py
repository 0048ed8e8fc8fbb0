"""What sources and mirrors take, keep and refuse."""
