"""Follow no redirect of the web."""

import urllib.request


class NoRedirects(urllib.request.HTTPRedirectHandler):
    """Take a redirect for a refusal: a token would go along elsewhere, and what was posted would be dropped on the way.

    What is followed may answer with a success all the same.
    """

    def redirect_request(self, *_args: object) -> None:
        return None
