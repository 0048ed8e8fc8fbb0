"""Checks of everything around an agent that is wrong, or soon will be, with remedies. Changes nothing, anywhere."""
