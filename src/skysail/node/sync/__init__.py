"""Pure decisions about one pod: snapshot, plan, status, unsupported fields, cloud requirements."""
