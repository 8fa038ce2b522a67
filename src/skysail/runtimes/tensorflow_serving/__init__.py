"""Stand-in for TensorFlow Serving's REST API, for machines that cannot run the real server.

It accepts the flags and directories of `tensorflow_model_server` and gives the same answers. It is not used where the
real image runs.
"""
