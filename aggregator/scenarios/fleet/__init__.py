"""A fleet's registrations, sampled from city to region to centre."""
