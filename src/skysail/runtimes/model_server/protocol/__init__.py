"""Wire formats of the model server: `/predict` and `infer` in JSON, input validation, responses."""
