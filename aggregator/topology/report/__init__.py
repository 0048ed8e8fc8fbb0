"""How the streams do, and what a person must look at."""
