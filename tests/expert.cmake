kvasir_test(expert_test SOURCES expert_test.cpp DEPENDS kvasir_expert ggml TIMEOUT 300)
