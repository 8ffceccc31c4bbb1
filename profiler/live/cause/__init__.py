"""Who asked for a collective: frames, modules, parameters, groups, phases; and how large it was.

`attribute.Attribution.place` decides, `frames` walks the stack, in backward too; `decode` reads sizes off a
call's arguments, `accounting` shares out exposed time.

It may import `ledger.records`.
Start reading in `attribute`.
"""
