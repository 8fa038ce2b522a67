"""Contents of the commands about clouds: offers, plan, cost and drain."""
