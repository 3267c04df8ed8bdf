"""One suite over every gRPC front end, through real clients and the real daemon."""
