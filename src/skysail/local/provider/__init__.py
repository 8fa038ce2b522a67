"""The provider `local`: pods as sandboxed processes of this machine, each with its own address."""
