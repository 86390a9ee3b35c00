"""How large is a compute buffer, exactly? (The engine's graph, laid out without its numbers.)

llama.cpp builds a graph of tensors for the largest batch and plans where each lies and when its place is
used again. Here the same graph is built of shapes alone and planned the same way. Sources: ggml-alloc.c,
ggml-backend.cpp, llama-graph.cpp and ``src/models`` of builds 11434 to 11669; own words, no code of theirs.
"""
