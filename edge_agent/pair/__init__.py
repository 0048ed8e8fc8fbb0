"""Let two agents serve one site: one leads, the other stands by, in step, and takes over."""
