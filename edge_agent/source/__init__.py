"""Reading of the site's stream, detection of its changed past, and proof that it stores."""
