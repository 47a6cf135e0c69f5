"""Lines as gRPC streams: one a client, admitted by its certificate and its token."""
