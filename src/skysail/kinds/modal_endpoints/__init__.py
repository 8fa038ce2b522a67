"""API types of ModalEndpoint and ModalFunction. Their controller is not built yet."""
