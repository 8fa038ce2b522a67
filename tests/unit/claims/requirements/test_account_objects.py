from skysail.claims.requirements.account_objects import named


def test_options_of_runpod_name_objects_of_its_account():
    options = (
        ("template-id", "t1"),
        ("network-volume-id", "v1"),
        ("container-registry-auth-id", "r1"),
        ("ports", "80/http"),
    )
    assert named("runpod", options) == ("runpod/network-volume/v1", "runpod/registry/r1", "runpod/template/t1")


def test_other_clouds_have_no_such_objects():
    assert named("modal", (("template-id", "t1"),)) == ()
