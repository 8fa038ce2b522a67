"""The contestants: one controller, run by Skysail's core and by Kopf.

It counts the running pods of each TrainingJob, finds a pod's job by the UID of its owner, and writes the count to the
job's status where it differs.
"""
