"""Who may take a Lease: nobody's clock is believed but one's own."""

from typing import Any

from berth.controller.leadership import LeaseTerms, Observed, is_own_former_life, own_identity


def _lease(version: int, holder: str = "other", duration: int = 15) -> dict[str, Any]:
    return {
        "metadata": {"resourceVersion": str(version)},
        # Stamps of another clock, far in the past: they must not matter.
        "spec": {
            "holderIdentity": holder,
            "leaseDurationSeconds": duration,
            "renewTime": "1999-01-01T00:00:00.000000Z",
        },
    }


def test_a_lease_expires_by_staying_the_same_for_as_long_as_it_lasts() -> None:
    observed = Observed()
    assert not observed.expired(_lease(1), 100.0)
    assert not observed.expired(_lease(1), 114.9)
    assert observed.expired(_lease(1), 115.0)


def test_a_renewal_begins_the_wait_anew() -> None:
    observed = Observed()
    assert not observed.expired(_lease(1), 100.0)
    assert not observed.expired(_lease(2), 114.0)
    assert not observed.expired(_lease(2), 120.0)
    assert observed.expired(_lease(2), 129.0)


def test_a_lease_that_was_given_up_is_free_at_once() -> None:
    assert Observed().expired(_lease(1, holder=""), 0.0)


def test_the_former_container_of_this_very_pod_is_gone() -> None:
    mine = own_identity("controller-7f")
    assert is_own_former_life("controller-7f_0123456789ab", mine)
    assert not is_own_former_life("controller-8a_0123456789ab", mine)
    assert not is_own_former_life("", mine)


def test_processes_without_a_pod_name_are_strangers_to_each_other() -> None:
    assert not is_own_former_life(own_identity(""), own_identity(""))


def test_a_leader_is_gone_before_others_may_take_over() -> None:
    terms = LeaseTerms("berth-system", 15.0)
    assert terms.renew_s < terms.deadline_s < terms.duration_s
