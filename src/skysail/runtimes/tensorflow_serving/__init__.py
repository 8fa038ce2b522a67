"""TensorFlow Serving's REST API in Python, for machines where its server is not available.

It accepts the flags and folders of `tensorflow_model_server` and answers in the same way. It is not used where the real
image runs.
"""
