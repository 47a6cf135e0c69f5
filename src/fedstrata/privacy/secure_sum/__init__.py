"""Secure aggregation: a server learns the sum of what sites send, and nothing of any one of them.

Source: Bonawitz, Ivanov, Kreuter, Marcedone, McMahan, Patel, Ramage, Segal, Seth 2017, Practical Secure
Aggregation for Privacy-Preserving Machine Learning: double masks on the complete graph, with the round of
consistency signatures against a server that lies (section 6). Six exchanges make one masked sum:

| exchange | a site sends (`SumClient`) | it gets (`SumServer`, then `SumUnmasking`) |
|---|---|---|
| keys | `KeyBundle`: fresh keys, signed by its identity | `Roster`: everybody's |
| shares | `SentShares`: of its two secrets, encrypted to each site | `DeliveredShares`: everybody's for it |
| delivery | `OpenedShares`: whose it could open | `Sharers`: who masks with each other |
| input | `MaskedInput`: ring elements under all its masks | `Survivors`: whose input came |
| consistency | `ConsistencySignature`: of all it knows of the sum | `ConsistencyProof`: everybody's |
| unmasking | `ReleasedShares`: one share of each site, never both | |

What is protected against: a server that deviates in any way, together with fewer than 2t - n sites, t being
the threshold. What is not: the sum itself, which the server learns, and differences of sums over rosters that
differ by a site; sites that send a false input.

One site that lies to an honest server loses its own part: `SumServer.unusable`, `left_out` and
`SumUnmasking.finish` do without it. Who deals shares of false secrets is found too late for one sum.
"""
