"""The site's stream: how it is read, what is known of its past, and whether it stores."""
