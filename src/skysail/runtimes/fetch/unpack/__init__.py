"""Safe unpacking of archives and OCI layers: only files and directories, below one directory."""
