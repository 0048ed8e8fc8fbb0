"""Look for what is wrong around an agent, or soon will be, and say what to do. Changes nothing, anywhere."""
