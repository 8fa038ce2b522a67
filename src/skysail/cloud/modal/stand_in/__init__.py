"""A local server that speaks Modal's wire protocol under the unmodified SDK, and runs sandboxes through a provider.

It is strict: what the service refuses is refused, and a call or a field that is not known here is recorded in
`unknown_calls`, so that a test fails instead of passing by accident.
"""
