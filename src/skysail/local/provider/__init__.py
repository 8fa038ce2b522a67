"""The provider `local`: pods as processes of this machine, each in its box, with an address of its own."""
