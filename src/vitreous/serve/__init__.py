"""The HTTP service. One process speaks HTTP; each model lives in a process of its own, which can die and come back.

client -> protocol -> guard -> api -> supervisor  ==frames==>  worker: decode -> batch -> model
"""
