"""ModalEndpoint and ModalFunction: a Deployment of pods at Modal, a Service through the bridge, code as a ConfigMap."""
