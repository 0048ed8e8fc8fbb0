"""Rules of the archive's records, for the live service and the tables alike: pure, and each in one place."""
