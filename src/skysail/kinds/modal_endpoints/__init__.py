"""What answers requests from a cloud: ModalEndpoint and ModalFunction."""
