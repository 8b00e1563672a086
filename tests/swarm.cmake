kvasir_test(swarm_test
    SOURCES swarm_churn_test.cpp swarm_dispatch_test.cpp swarm_fake_worker.cpp swarm_hot_test.cpp swarm_link_test.cpp
        swarm_partition_test.cpp swarm_policy_test.cpp swarm_support.cpp
    DEPENDS kvasir_swarm ggml)
add_dependencies(swarm_test ggml-cpu)
