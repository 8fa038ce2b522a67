"""TensorFlow Serving's REST API in Python, for machines on which its server cannot be had.

It takes the flags and the folders that `tensorflow_model_server` takes, and answers as that does. Where the real image
runs, nothing of this does.
"""
