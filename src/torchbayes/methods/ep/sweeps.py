"""A visit of expectation propagation to some factors: one after the other, or all of them at once."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from torchbayes.methods.ep.beliefs import Belief, Sites, asked, cavity, together
from torchbayes.methods.ep.factors import Factors


class Rule(NamedTuple):
    """How sites are updated."""

    power: float  # a
    temperature: float  # T, of the likelihood
    damping: float  # share of the way that a site goes to what its factor asks for


class Visited(NamedTuple):
    """The result of a visit."""

    belief: Belief
    sites: Sites
    skipped: int  # sites left unchanged, as their cavity is not a distribution or their moments were not found


def at_once(before: Belief, factors: Factors, old: Sites, *, rule: Rule) -> Visited:
    """Return q and sites after all sites moved, each by what q was before."""
    exact = factors.exact(rule.temperature)
    if exact is not None:
        everywhere_N = torch.ones_like(factors.counts_N, dtype=torch.bool)
        now, sites, moved = together(
            before,
            factors.slopes_NRD,
            old,
            to=exact,
            good_N=everywhere_N,
            counts_N=factors.counts_N,
            share=rule.damping,
        )
        return Visited(now, sites, 0 if moved else len(everywhere_N))
    roots_NRE = factors.slopes_NRD @ before.root_DD
    marginals = factors.slopes_NRD @ before.mean_D, roots_NRE @ roots_NRE.mT
    to, good_N = _asked(*marginals, old, factors=factors, rule=rule)
    now, sites, moved = together(
        before, factors.slopes_NRD, old, to=to, good_N=good_N, counts_N=factors.counts_N, share=rule.damping
    )
    return Visited(now, sites, int((~good_N).sum()) if moved else len(good_N))


def in_turn(before: Belief, factors: Factors, old: Sites, *, rule: Rule) -> Visited:
    """Return q and sites after each site moved by what q had become by the ones before it."""
    if factors.exact(rule.temperature) is not None:  # exact sites do not depend on q
        return at_once(before, factors, old, rule=rule)
    covariance_DD, mean_D, skipped = before.root_DD @ before.root_DD.T, before.mean_D.clone(), 0
    now = Sites(*(values.clone() for values in old))
    for n, slopes_RD in enumerate(factors.slopes_NRD):
        site, along_RD = now.at(slice(n, n + 1)), slopes_RD @ covariance_DD
        marginal = (slopes_RD @ mean_D).unsqueeze(0), (along_RD @ slopes_RD.T).unsqueeze(0)
        to, good = _asked(*marginal, site, factors=factors, rule=rule, first=n)
        moved = site.towards(to, rule.damping, good)
        change = Sites(*(factors.counts_N[n] * (new - was) for new, was in zip(moved, site, strict=True)))
        if not bool(good[0] & cavity(*marginal, change, power=-1.0).proper_N[0]):
            skipped += 1
            continue
        inner_RR = torch.eye(len(slopes_RD)).to(along_RD) + change.precision_NRR[0] @ marginal[1][0]
        pull_R1 = (change.shift_NR[0] - change.precision_NRR[0] @ marginal[0][0]).unsqueeze(1)
        gain = torch.linalg.solve(inner_RR, torch.cat([change.precision_NRR[0] @ along_RD, pull_R1], dim=1))
        covariance_DD -= along_RD.T @ gain[:, :-1]
        mean_D += along_RD.T @ gain[:, -1]
        for into, values in zip(site, moved, strict=True):
            into.copy_(values)
    everywhere_N = torch.ones_like(factors.counts_N, dtype=torch.bool)
    q, sites, fits = together(
        before, factors.slopes_NRD, old, to=now, good_N=everywhere_N, counts_N=factors.counts_N, share=1.0
    )
    return Visited(q, sites, skipped if fits else len(everywhere_N))


def _asked(
    mean_NR: Tensor, covariance_NRR: Tensor, sites: Sites, *, factors: Factors, rule: Rule, first: int = 0
) -> tuple[Sites, Tensor]:
    """Return the sites that factors ask for, from number `first` on, and where these exist."""
    around = cavity(mean_NR, covariance_NRR, sites, power=rule.power)
    return asked(
        around,
        factors.tilted(around.mean_NR, around.root_NRR, power=rule.power / rule.temperature, first=first),
        rule.power,
    )
