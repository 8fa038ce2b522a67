"""API types ModalEndpoint and ModalFunction, which answer requests at Modal."""
