"""The line between clients and server as processes: one a client, each message once and in order.

| file | |
|---|---|
| `header` | what a message looks like on the wire: a small protobuf header, then the bytes of one frame |
| `link` | one end of a line that outlives its connections: numbers, acknowledgements, what is sent again |
| `agreement` | what both sides must agree on before a word is said, and what a message may then hold |
| `hub` | the server: who is there, sending to each, receiving from any |
| `membership` | the client: staying connected, and the line of a handler |
| `grpc` | the hub and the membership whose connections are gRPC streams |
| `credentials`, `admission` | of gRPC: certificates, tokens and addresses; who is let in by them |

A client connects, says HELLO with what it holds, and is told WELCOME or refused with the reason. Who it is is
said by what carries the line: for gRPC by its certificate and its token. When the connection breaks, it comes
back with the number of its session and of the last message that arrived, and so does the server; what is
missing is sent again, and what came already is dropped. So whatever happens to connections, no message is
lost and none is delivered twice. A process that ends takes its session with it: the other side is told that
the session is over.
"""
