"""`skysail report`: one archive for a bug report, without secrets."""
