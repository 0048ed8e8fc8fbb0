"""Answer over HTTP: the API and its events, metrics, and who may ask."""
